"""Long real data: are features needed where something far away must be found?"""
